from gmmc.cli import main

main()
