"""The files of fine-tuning tasks, in the layouts in which they are published and in a user's own."""
