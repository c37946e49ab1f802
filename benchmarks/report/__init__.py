"""Tables, figures and the page, from what runs left in their folders."""
