"""The words and thresholds that all parts of Rankskew share: each stands here once."""
