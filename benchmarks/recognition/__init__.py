"""From images to hypotheses: test sets, pictures of single expressions; and the network's attention."""
