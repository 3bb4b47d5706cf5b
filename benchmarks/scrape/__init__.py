"""What a scrape costs."""
