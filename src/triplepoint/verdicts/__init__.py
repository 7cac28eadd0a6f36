"""Published claims, and the verdict of the results on each: agrees, differs or cannot tell."""
