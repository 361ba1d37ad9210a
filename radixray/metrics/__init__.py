"""What is counted, under which names it is shown, and how that is written."""
