"""Why a rank is late: decided once, from figures, by pure functions."""
