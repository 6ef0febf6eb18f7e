"""Training labels by the rules of the db3 paper (section 3.3), and LoRA adapters trained on them.

    rows = [tokenized(chats, example) ...]    # rows.py: token ids, and the index where the answer begins
    order = row_order(lengths, ...)           # rows.py: the rows of all steps, for any number of workers
    adapter = train(job, folder, ...)         # trainer.py: one worker, alone or in a group, with TRL
    write_adapter(folder, tensors, ...)       # model.py: its files, as engines load them

Only trainer, rows and model import torch, TRL, transformers or peft. Only workers and engine_check import
Ray.
"""
