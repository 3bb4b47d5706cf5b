"""The probe in other people's training frameworks: one file each, imported by its users only."""
