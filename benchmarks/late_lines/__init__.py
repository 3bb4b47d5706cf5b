"""A slow line planted in a job: is it the one that is named?"""
