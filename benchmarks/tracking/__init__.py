"""MLflow as a mirror of run folders, which stay authoritative; no failure here may stop a run."""
