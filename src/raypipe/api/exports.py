"""The names that `import raypipe` gives. Plain data: it imports nothing."""

EXPORTS = {  # exported name -> module that defines it
    name: f"raypipe.{module}"
    for module, names in {
        "api.compare": ("compare",),
        "api.data": ("ingest", "parse_html"),
        "api.datasets": ("demo_data", "download_crag", "download_qasper", "synthesize", "synthesize_papers"),
        "api.example_pools": ("build_examples",),
        "api.export": ("export_run",),
        "api.finetune": ("finetune", "plan_finetune"),
        "api.fit": ("fit_decide", "fit_fuse"),
        "api.graphs": ("build_facts", "run_calls", "serve_graph"),
        "api.judge_check": ("check_judge", "pick_to_label"),
        "api.kg_score": ("score_calls",),
        "api.look": ("faults", "losses", "why"),
        "api.machine": ("check_environment",),
        "api.made_questions": ("make_questions",),
        "api.model_files": ("model_needs",),
        "api.plans": ("plan",),
        "api.previews": ("preview",),
        "api.project": ("start_project",),
        "api.questions": ("ask", "rank"),
        "api.release": ("promote", "prune", "releases", "rollback"),
        "api.repeats": ("evaluate_repeatedly",),
        "api.results": ("Result",),
        "api.run": ("answer", "evaluate", "index", "reprocess"),
        "api.schemas": ("schema",),
        "api.scores": ("score_crag", "score_qa", "score_qasper", "score_ranking"),
        "api.session": ("Session", "load_recipe"),
        "api.settings": ("from_environment",),
        "api.steps": ("check_step",),
        "api.swaps": ("swap_steps",),
        "api.sweep": ("sweep",),
        "api.validate": ("validate",),
        "api.view": ("list_runs", "write_view"),
        "api.walk": ("walk",),
        "core.errors": ("RaypipeError",),
        "store": ("Store",),
    }.items()
    for name in names
}
