"""`make report`: one static page with tables, charts and every expression."""
