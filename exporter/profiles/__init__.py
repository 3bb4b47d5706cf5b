"""What two traces of torch.profiler say of a late rank and its healthy peer."""
