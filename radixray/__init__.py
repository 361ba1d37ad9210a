"""RadixRay."""
