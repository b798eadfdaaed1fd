"""Thirty-two prompts: short and long, plain English, lists, code, numbers, other scripts."""

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "Q: What is the boiling point of water at sea level?\nA:",
    "To make a cup of tea, first",
    "1, 1, 2, 3, 5, 8, 13,",
    "In 1969, the Apollo 11 mission",
    "The quick brown fox",
    "Photosynthesis is the process by which plants",
    "My favourite season is autumn because",
    "SELECT name, age FROM users WHERE",
    "The opposite of hot is",
    "Dear Sir or Madam,\n\nI am writing to",
    "La capitale de l'Italie est",
    "Der schnellste Weg nach Hause",
    "import numpy as np\n\nx = np.array([1, 2, 3])\nprint(",
    "A list of fruits:\n- apple\n- banana\n-",
    "The derivative of x^2 is",
    "Water is made of two elements:",
    "The moon orbits the Earth every",
    "Breaking news: scientists have discovered",
    "Roses are red, violets are blue,",
    "He opened the door slowly and saw",
    "The largest planet in the solar system is",
    "人工智能是",
    "Привет, меня зовут",
    "<html>\n<head>\n<title>",
    "If it rains tomorrow, we will",
    "The main difference between cats and dogs is that cats",
    "Once the recipe calls for two cups of flour, one cup of sugar, and a pinch of salt, "
    "you should mix the dry ingredients in a large bowl before adding the eggs. Then,",
    "A short history of the bicycle. The bicycle was not invented by one person. In 1817 a "
    "German baron built a wooden machine with two wheels in line, pushed along by the feet. "
    "Pedals came later, in France, in the 1860s; the chain came later still. Today,",
]
