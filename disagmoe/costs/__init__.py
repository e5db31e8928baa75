"""What a model costs on given machines: FLOPs, bytes, memory, and seconds per op and transfer."""
