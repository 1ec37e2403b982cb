"""Numerical operations: the menu (`ops`), the reference (`ref`), native ones (`cpu`), and the choice (`select`)."""
