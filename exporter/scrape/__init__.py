"""What a scrape returns: collectors sampled in the background, rendered in the format asked for."""
