"""From data as people have it to an archive in CoMER's layout."""
