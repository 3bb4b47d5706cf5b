"""What several dashboards have in common: shapes of panels, links, words and series."""
