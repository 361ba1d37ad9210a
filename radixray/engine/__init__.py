"""Layer 3: the step loop: live requests, sampling, output text."""
