"""Run folders: reading, writing, listing and packing them; the workspace of an archive's runs."""
