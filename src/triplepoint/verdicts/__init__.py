"""Published claims, and the verdict of results on each: agrees, differs or cannot tell."""
