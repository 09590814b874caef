"""Side by side with what others wrote: times, memory, and a refusal where the numbers are wrong."""
