"""Two ways to bring a computation: a class in the place of another, and one implementation among several."""
