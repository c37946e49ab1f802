"""Tables, figures and the HTML report, made from run folders."""
