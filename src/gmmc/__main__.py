from gmmc.cli.app import main

main()
