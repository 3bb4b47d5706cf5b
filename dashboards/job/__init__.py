"""The dashboard of one training job."""
