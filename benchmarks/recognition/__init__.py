"""From images to hypotheses: test sets, single images, photographs, and where a network looks."""
