from specllm.cli.main import run

run()
