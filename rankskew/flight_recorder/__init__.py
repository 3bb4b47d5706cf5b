"""What torch's flight recorder wrote of a hang: which collective, and which ranks are missing."""
