"""Numerical operations: the menu (`ops`), the readable reference (`ref`), native ones (`cpu`), and the choice (`select`)."""
