"""Labels by db3's rules, and LoRA adapters that are trained on them.

    rows = [tokenized(chats, example) ...]    # rows.py: ids, and where the answer begins
    order = row_order(lengths, ...)           # rows.py: the rows of all steps, for any number of workers
    adapter = train(job, folder, ...)         # trainer.py: one worker, alone or in a group, by trl
    write_adapter(folder, tensors, ...)       # model.py: its files, as engines load them

Of these trainer, rows, model and estimate know torch, trl, transformers and peft; Ray in `workers` alone.
"""
