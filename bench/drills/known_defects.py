"""Defects of one line, each of a kind that once was there, with the test that must catch it.

Where a line or a test moves, its entry follows. `defects.py` puts each defect back and runs its test;
`tests/drills/test_defects.py` counts the entries, and checks that each still applies.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defect:
    what: str  # the wrong behaviour, in a sentence
    file: str  # path from the root of the checkout
    old: str  # text within one line, which stands once in the file
    new: str  # the text that takes its place
    test: str  # pytest's id of the test that must fail, without parameters


DEFECTS = (
    # Comparisons: p values, intervals, corrections.
    Defect(
        "The exact p leaves out sums as far from 0 as the one found.",
        "src/raypipe/metrics/certainty.py",
        "chances[np.abs(sums) >= found]",
        "chances[np.abs(sums) > found]",
        "tests/metrics/test_paired.py::test_the_exact_p_counts_all_signs",
    ),
    Defect(
        "Each question of a group counts as one in a paired test.",
        "src/raypipe/metrics/certainty.py",
        "units = d if groups is None else group_sums(d, groups)[0]",
        "units = d",
        "tests/metrics/test_paired.py::test_groups_move_as_one",
    ),
    Defect(
        "maxT compares each run with itself alone, and corrects nothing.",
        "src/raypipe/metrics/certainty.py",
        "largest = np.maximum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]",
        "largest = drawn",
        "tests/metrics/test_max_t.py::test_of_few_questions_it_is_the_step_down_p_over_all_signs",
    ),
    Defect(
        "Slices of a comparison are not corrected for their number.",
        "src/raypipe/evaluation/compare.py",
        "corrected = holm([found.p for _, found in slices])",
        "corrected = [found.p for _, found in slices]",
        "tests/evaluation/test_compare.py::test_several_runs_and_slices_are_corrected_for_their_number",
    ),
    Defect(
        "A row's held-out probability comes from a fit that has seen the row.",
        "src/raypipe/metrics/calibration.py",
        "bias, w = least(x[~own], right[~own], strength)",
        "bias, w = least(x, right, strength)",
        "tests/metrics/test_fitting.py::"
        "test_noise_gets_a_strong_ridge_and_a_rows_own_outcome_is_not_in_its_held_out_probability",
    ),
    # Scores: "not scored" is no number.
    Defect(
        "Predictions that are not scored count among the scored ones.",
        "src/raypipe/metrics/crag.py",
        "scored = correct + miss + wrong",
        'scored = correct + miss + wrong + n["unscored"]',
        "tests/metrics/test_crag_rules.py::test_where_nothing_is_scored_shares_are_none_and_never_zero",
    ),
    Defect(
        "A question that failed is scored as an answer of nothing.",
        "src/raypipe/metrics/crag.py",
        'q.outcome in ("", FAULT, RANKED)',
        'q.outcome in ("", RANKED)',
        "tests/metrics/test_crag_rules.py::test_questions_meet_their_truths_and_a_fault_is_no_wrong_answer",
    ),
    Defect(
        "An answer is wrong although the judge gave no reply about one of its truths.",
        "src/raypipe/evaluation/judge.py",
        "if failed and not right:",
        "if failed and not (right or wrong):",
        "tests/evaluation/test_judge.py::test_no_reply_is_unscored_unless_another_truth_was_met",
    ),
    Defect(
        "Scores that are equal in single precision, as trec_eval has them, are ranked apart.",
        "src/raypipe/metrics/ranking.py",
        "(np.float32(scores[d]), d.encode())",
        "(scores[d], d.encode())",
        "tests/metrics/test_ranking_measures.py::test_a_written_run_reads_back_and_is_ranked_as_it_is_scored",
    ),
    Defect(
        "Any text holds a gold of which one of several truths is yes or no.",
        "src/raypipe/metrics/losses.py",
        "return all(normalized(t) in JUDGEMENTS",
        "return any(normalized(t) in JUDGEMENTS",
        "tests/evaluation/test_losses.py::test_a_text_holds_a_gold_by_its_words",
    ),
    # Parity: a row alone, in a batch, in a job and at the endpoint.
    Defect(
        "What a query added to passages below its bound stays for the next query of its batch.",
        "src/raypipe/text/bm25.py",
        "self._sum[:] = 0.0",
        "self._sum[found] = 0.0",
        "tests/store/test_postings.py::test_postings_give_the_hits_of_the_words_after_sources_came_and_went",
    ),
    Defect(
        "A server's vectors are taken in the order of its answer, not by their index.",
        "src/raypipe/models/remote.py",
        'rows = {int(row["index"]): row for row in answer["data"]}',
        'rows = dict(enumerate(answer["data"]))',
        "tests/models/test_remote_vectors.py::"
        "test_vectors_come_in_the_order_of_the_texts_as_unit_rows_whatever_the_dialect",
    ),
    Defect(
        "Equal scores are ranked in the order in which they came.",
        "src/raypipe/steps/ranking.py",
        "key=lambda chunk: (-scores[chunk], chunk)",
        "key=lambda chunk: -scores[chunk]",
        "tests/steps/test_fuse.py::test_equal_scores_come_in_the_order_of_their_ids",
    ),
    Defect(
        "A stored question is answered at its own time although the request states another.",
        "src/raypipe/serving/store_snapshot.py",
        "asked_at = question.asked_at or first.asked_at",
        "asked_at = first.asked_at or question.asked_at",
        "tests/serving/http/test_service.py::"
        "test_the_time_of_a_request_stands_before_that_of_the_stored_question",
    ),
    Defect(
        "Two workers weigh answers by their own rows' tokens, not by those of the whole batch.",
        "src/raypipe/contrib/finetune/loop.py",
        "for i in batch.rows)",
        "for i in share(batch.rows, group.rank, group.world))",
        "tests/contrib/finetune/test_training_loop.py::test_gradients_of_two_workers_add_up_to_those_of_one",
    ),
    # Keys: what decides a result is in its key, and nothing else.
    Defect(
        "A query and a passage of one text share a cached vector.",
        "src/raypipe/store/memo/keys.py",
        "digest(identity, role, text)",
        "digest(identity, text)",
        "tests/store/memo/test_memo.py::test_another_role_or_model_is_another_request",
    ),
    Defect(
        "Replies of an adapter are cached by its name, whatever its weights are.",
        "src/raypipe/store/memo/keys.py",
        "weights = dict(model.adapters).get(adapter, adapter)",
        "weights = adapter",
        "tests/store/memo/test_memo_replies.py::"
        "test_another_adapter_beside_it_asks_nothing_again_and_other_weights_under_its_name_do",
    ),
    Defect(
        "The key of an answer leaves out the time at which the question is asked.",
        "src/raypipe/recipes/recipe.py",
        "return digest(question.text, question.body, question.asked_at, *evidence)",
        "return digest(question.text, question.body, *evidence)",
        "tests/recipes/test_recipe.py::test_the_row_key_covers_text_time_and_evidence_in_order",
    ),
    Defect(
        "The digest of a stage leaves out its gate.",
        "src/raypipe/recipes/recipe.py",
        "stable(dict(self.when)), *source",
        "*source",
        "tests/recipes/test_recipe.py::test_a_gate_may_be_a_table_by_the_label_of_another_reply",
    ),
    Defect(
        "A model that reads more tokens is the same model.",
        "src/raypipe/core/digests.py",
        '"thought_tokens",',
        '"thought_tokens", "max_tokens",',
        "tests/core/test_digests.py::test_everything_else_about_a_model_is_identity",
    ),
    Defect(
        "One model under two names is loaded twice.",
        "src/raypipe/models/kit.py",
        'return replace(model, name="", path="", adapter_paths=())',
        'return replace(model, path="", adapter_paths=())',
        "tests/models/test_local_kit.py::test_a_model_is_loaded_once_under_all_its_names_and_all_the_indexes",
    ),
    # Files: HTML, PDF, docx, CSV, crawls, rows.
    Defect(
        "A row of a pool ends at any line separator of Unicode.",
        "src/raypipe/readers/example_pool.py",
        'text.split("\\n")',
        "text.splitlines()",
        "tests/steps/test_examples.py::test_only_a_newline_ends_a_row_of_a_pool",
    ),
    Defect(
        "Text that was moved away in a docx is read at its old place, too.",
        "src/raypipe/readers/documents/docx.py",
        "del moveFrom instrText",
        "del instrText",
        "tests/readers/test_folder_documents.py::"
        "test_a_docx_says_all_that_word_shows_and_nothing_that_it_hides",
    ),
    Defect(
        "A compound loses its hyphen at a line's end.",
        "src/raypipe/readers/documents/page_text.py",
        'out.append("-" if compound and left + right not in known else "")',
        'out.append("")',
        "tests/readers/test_folder_documents.py::"
        "test_hyphens_at_line_ends_are_decided_by_the_words_of_the_document",
    ),
    Defect(
        "A linked folder outside of the folder that was named is read.",
        "src/raypipe/readers/documents/walk.py",
        "inside = entry.is_dir() and path.resolve().is_relative_to(real)",
        "inside = entry.is_dir()",
        "tests/readers/test_folder_documents.py::"
        "test_a_folder_is_walked_without_waiting_leaving_or_turning_in_circles",
    ),
    Defect(
        "Signs inside quotation marks of a header decide what parts its cells.",
        "src/raypipe/readers/row_files.py",
        """bare = re.sub(r'"[^"]*"', "", start)""",
        "bare = start",
        "tests/readers/test_own_rows.py::test_tabs_and_semicolons_part_cells_too",
    ),
    Defect(
        "A page is decoded by its own word where the server states another encoding.",
        "src/raypipe/readers/warc.py",
        'plain.decoded(data, kind == "page", charset)',
        'plain.decoded(data, kind == "page")',
        "tests/readers/test_crawls.py::test_the_servers_encoding_stands_before_that_of_the_page",
    ),
    Defect(
        "A page that carries our marks of hidden text is shown to models.",
        "src/raypipe/text/html.py",
        "hidden=((0, len(plain.text)),) if plain.text else ()",
        "hidden=()",
        "tests/text/test_hidden_text.py::test_a_page_that_brings_the_marks_itself_is_hidden_as_a_whole",
    ),
    # Replies and prompts.
    Defect(
        "A thought that does not end is an answer.",
        "src/raypipe/text/thoughts.py",
        "if _OPEN.search(text, end):",
        "if end and _OPEN.search(text, end):",
        "tests/text/test_thoughts.py::test_only_what_stands_behind_the_last_thought_is_the_answer",
    ),
    Defect(
        "A context is cut without counting what closes the cut.",
        "src/raypipe/text/pack.py",
        "if (over := len(tokenize(text)) - budget) <= 0:",
        "if (over := len(tokenize(text)) - budget) <= 1:",
        "tests/text/test_pack.py::test_a_context_fits_its_budget_whatever_is_packed",
    ),
    Defect(
        "Rounds of searches pass their budget of tokens by one reply.",
        "src/raypipe/steps/iterate.py",
        "if row.tokens + needed + self._most_reply() > self.tokens:",
        "if row.tokens + needed > self.tokens:",
        "tests/steps/test_iterate.py::test_the_rounds_end_where_the_next_could_pass_the_budget",
    ),
    # Plans.
    Defect(
        "A gated stage shortens the ranking of the questions that it leaves alone.",
        "src/raypipe/runs/plan/stage_bounds.py",
        "reach = _further(reach, each.reach) if stage.when else each.reach",
        "reach = each.reach",
        "tests/runs/test_stage_bounds.py::"
        "test_behind_a_gate_the_ranking_is_as_long_as_for_questions_that_the_stage_leaves_alone",
    ),
    Defect(
        "A plan over what a killed run left forgets the questions that it was not asked.",
        "src/raypipe/runs/plan/store_state.py",
        "return [*undone, *(i for i in missing if i not in done and i not in set(undone))]",
        "return list(undone)",
        "tests/runs/test_plan.py::"
        "test_questions_that_a_killed_run_was_not_asked_are_planned_after_those_that_it_left",
    ),
    Defect(
        "A plan takes for cached what a memo table has lost.",
        "src/raypipe/runs/plan/standing.py",
        "return any(self._has_lost(table.name) for table in _tables(step))",
        "return False",
        "tests/runs/test_plan_memo.py::"
        "test_a_memo_table_that_is_gone_is_planned_and_what_another_table_holds_is_not",
    ),
    # The store: exactly once, on disk, leased, released.
    Defect(
        "A part whose file was cut counts as done.",
        "src/raypipe/store/parts.py",
        "if store.files.size(path) != size:",
        "if store.files.size(path) is None:",
        "tests/store/test_commit.py::test_a_part_whose_file_is_gone_or_cut_is_done_again",
    ),
    Defect(
        "A record of a part is on disk before its rows are.",
        "src/raypipe/store/parts.py",
        "store.files.sync(name)",
        "store.files.size(name)",
        "tests/store/test_durable.py::test_rows_of_a_part_are_on_disk_before_the_record_that_names_them",
    ),
    Defect(
        "A run that two drivers appended keeps its rows twice.",
        "src/raypipe/store/commit.py",
        "for version in versions[1:]:",
        "for version in versions[2:]:",
        "tests/store/test_commit.py::test_a_run_that_two_drivers_appended_is_there_once_after_the_next_commit",
    ),
    Defect(
        "A process that got a dead driver's number holds its lease.",
        "src/raypipe/store/lease.py",
        "return abs(psutil.Process(sign.pid).create_time() - sign.started) < 1.0",
        "return psutil.Process(sign.pid).is_running()",
        "tests/store/test_put.py::test_a_process_that_got_a_dead_drivers_number_is_not_that_driver",
    ),
    Defect(
        "A run is released that this raypipe would compute otherwise.",
        "src/raypipe/runs/release.py",
        "release.opened(store)",
        "pass",
        "tests/runs/test_release.py::test_a_run_that_this_raypipe_would_compute_otherwise_is_not_released",
    ),
    Defect(
        "A gate holds by the end of the interval that is in its favour.",
        "src/raypipe/runs/gates.py",
        'return {">": interval[0], "<": interval[1]}',
        'return {">": interval[1], "<": interval[0]}',
        "tests/evaluation/test_evidence_of_runs.py::"
        "test_a_bound_holds_for_the_end_of_the_interval_and_says_what_is_missing",
    ),
    # Serving: keys, hosts, ids, deadlines, memory.
    Defect(
        "An endpoint without keys answers a web page that points a name of its own at this machine.",
        "src/raypipe/serving/http/limits.py",
        "if not (_loopback(client) and _loopback(host)):",
        "if not _loopback(client):",
        "tests/serving/http/test_service_api.py::test_without_keys_it_answers_its_own_machine_alone",
    ),
    Defect(
        "A client's request id may hold a line of the log.",
        "src/raypipe/serving/http/middleware.py",
        "id = given if _ID.fullmatch(given)",
        "id = given if _ID.match(given)",
        "tests/serving/http/test_service_api.py::"
        "test_the_log_has_a_line_for_a_request_with_its_id_and_none_of_its_words",
    ),
    Defect(
        "A refusal repeats the name of an unknown field, which may be a key.",
        "src/raypipe/serving/http/requests.py",
        'found.append(f"field {number} is unknown{meant}")',
        'found.append(f"field {name!r} is unknown{meant}")',
        "tests/serving/http/test_service.py::test_a_bad_body_is_400_and_never_echoed",
    ),
    Defect(
        "A fault shows the key that a server quotes.",
        "src/raypipe/models/openai.py",
        'detail.replace(key, "***") if key else detail',
        "detail",
        "tests/models/test_openai.py::test_the_key_goes_into_the_header_and_nowhere_else",
    ),
    Defect(
        "A client that asks for prompts gets none of a reply from memory.",
        "src/raypipe/serving/answerer.py",
        "memo = None if request.include_prompts else self._memo",
        "memo = self._memo",
        "tests/serving/test_online_memo.py::"
        "test_who_asks_for_the_prompts_gets_them_also_of_an_answer_that_is_remembered",
    ),
    Defect(
        "A question that one user asked is another's stored question.",
        "src/raypipe/serving/store_snapshot.py",
        "[q for q in named if not q.id.startswith(OWN_ID)]",
        "named",
        "tests/serving/test_capture.py::test_what_one_user_asked_is_offered_to_no_other_and_answers_no_other",
    ),
    Defect(
        "The first of several stages may take all of a question's time.",
        "src/raypipe/recipes/deadlines.py",
        "share = left - RESERVE_S if last else left * SHARE",
        "share = left - RESERVE_S",
        "tests/recipes/test_deadlines.py::test_a_stage_leaves_a_share_of_the_time_to_those_after_it",
    ),
    # Engines and workers.
    Defect(
        "A caller that stops waiting cancels a request in flight for the others.",
        "src/raypipe/core/singleflight.py",
        "landed = await asyncio.shield(flight)",
        "landed = await flight",
        "tests/core/test_singleflight.py::test_who_stops_waiting_stops_nobody_else",
    ),
    Defect(
        "Chats to an adapter and to its base run together.",
        "src/raypipe/models/lora_batch_lock.py",
        "if not self._waiting and (not self._inside or self._kind == kind):",
        "if not self._waiting:",
        "tests/models/test_lora_batch_lock.py::test_only_one_kind_is_inside_at_a_time_and_any_number_of_it",
    ),
    Defect(
        "Time on the wall, which load may have taken, is held against a page for good.",
        "src/raypipe/core/sandbox.py",
        'limits.wall_s:g} s, found more", transient=True)',
        'limits.wall_s:g} s, found more")',
        "tests/text/test_page_parser.py::test_time_on_the_wall_is_transient_as_load_may_have_taken_it",
    ),
    Defect(
        "Rows are blamed although all rows of their task fail.",
        "src/raypipe/runs/pipeline/dead_letters.py",
        "if not tried.passed and rows > 1:",
        "if not tried.passed and rows > 9:",
        "tests/runs/pipeline/test_dead_letters.py::"
        "test_rows_all_of_which_fail_are_not_to_blame_also_not_for_the_second_worker",
    ),
    # The knowledge graph.
    Defect(
        "After a year means after its first day.",
        "src/raypipe/contrib/crag/relation.py",
        'first if op in ("ge", "lt") else last',
        "first",
        "tests/contrib/crag/test_execute.py::test_each_call_and_operator",
    ),
    Defect(
        "Of names that overlap in a question the shortest is linked.",
        "src/raypipe/contrib/crag/link.py",
        "found.sort(key=lambda m: (m.span[0] - m.span[1], m.span[0]))",
        "found.sort(key=lambda m: (m.span[1] - m.span[0], m.span[0]))",
        "tests/contrib/crag/test_link.py::test_of_names_that_overlap_in_a_text_the_longest_counts",
    ),
)
