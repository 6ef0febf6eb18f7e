"""Tests of this project: `python -m unittest`, or pytest, in this folder. No model is needed."""

import unittest

from mysteps import SpellOut

import raypipe


class TestMySteps(unittest.TestCase):
    def test_an_abbreviation_is_spelled_out_and_other_words_stay(self):
        step = SpellOut(words={"PTO": "paid time off"})
        self.assertEqual(step.spelled("Is PTO in PTOs?"), "Is PTO (paid time off) in PTOs?")

    def test_the_step_keeps_the_laws_of_steps(self):
        checked = raypipe.check("mysteps:SpellOut", fields={"words": {"PTO": "paid time off"}})
        self.assertTrue(checked.fine, checked.steps)

    def test_the_recipe_reads_and_searches_by_the_step(self):
        recipe = raypipe.load_recipe("mine")
        self.assertEqual(recipe.question[1].step.into, "spelled")


if __name__ == "__main__":
    unittest.main()
