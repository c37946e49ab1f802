"""MLflow as a mirror of run folders. The folder is the truth; nothing here may stop the work."""
