"""Published systems under one signature: a card a system, predictions from elsewhere, counts and tests from here."""
