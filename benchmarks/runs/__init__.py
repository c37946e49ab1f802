"""Run folders: reading and writing them, listing them, packing them; where runs on an archive lie."""
