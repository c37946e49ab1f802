"""Tables, from the files under results/ alone."""
