"""`python -m gpssm.cli`."""

from gpssm.cli import main

main()
