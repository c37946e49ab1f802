"""From an archive to samples: reading CROHME, fetching it, making the embedded set, batching."""
