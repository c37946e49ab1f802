"""What a training costs and what bounds it: counts of its operators on its real shapes, and what machines can do."""
