"""From images to hypotheses: test sets, single images, photographs; and the network's attention."""
