"""CPU kernels in torch operations: correct everywhere, and the reference for faster backends."""
