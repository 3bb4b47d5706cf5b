"""The probe in other training frameworks: one file each, imported only by its users."""
