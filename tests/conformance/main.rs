//! What any store must hold to, run over every store there is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by it")]

mod answering;
mod feeding;
mod file;
mod forgetting;
mod kit;
mod leasing;
mod listing;
mod model;
mod operating;
mod ordering;
mod plans;
mod publishing;
mod silence;

/// Runs every promise over every store.
macro_rules! over_every_store {
    ($($module:ident { $($promise:ident),* $(,)? })*) => {
        mod in_memory {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() { crate::$module::$promise(&crate::kit::Kit::memory()).await; }
            )*)*
        }
        mod in_postgresql {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() { crate::$module::$promise(&crate::kit::Kit::postgres()).await; }
            )*)*
        }
        mod behind_pgbouncer {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() { crate::$module::$promise(&crate::kit::Kit::pgbouncer()).await; }
            )*)*
        }
        mod in_a_file {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() { crate::$module::$promise(&crate::kit::Kit::file()).await; }
            )*)*
        }
    };
}

over_every_store! {
    publishing {
        a_new_question_is_queued_for_every_announcer_that_wants_it,
        a_batch_sees_its_own_effects_in_order,
        a_redelivery_has_no_effect_ever_after,
        the_same_question_again_is_a_duplicate_that_moves_the_reply,
        another_question_supersedes_the_open_one,
        an_answered_question_is_answered_again,
        an_answer_that_still_waits_is_not_queued_again,
        dedupe_keys_belong_to_one_wait,
        a_dedupe_key_that_another_question_spells_is_taken,
        a_question_id_of_very_many_threads_costs_no_more,
        tenants_share_nothing,
        a_question_past_its_deadline_is_over_at_once,
        nobody_to_tell_is_told,
        many_publishers_at_once_each_get_their_own,
        what_comes_in_is_kept_to_the_byte,
    }
    answering {
        the_first_answer_wins_among_many,
        an_answer_is_for_its_generation_only,
        an_answer_withdraws_the_announcement_and_queues_the_delivery,
        a_late_answer_finds_the_deadline_done,
        deadlines_end_waits_the_longest_due_first,
        answer_and_deadline_have_one_winner,
        a_wait_is_cancelled_once,
        a_pull_delivery_is_over_once_fetched,
        an_answer_that_no_host_came_for_dies_when_it_expires,
        a_delivery_of_an_expired_answer_is_not_sent_again,
    }
    leasing {
        nothing_is_leased_twice_by_many_lanes,
        a_lease_that_runs_out_is_given_again_and_its_settlement_lost,
        a_failed_message_is_due_when_it_was_said,
        released_messages_are_due_at_once,
        a_lease_is_bounded_by_number_and_by_bytes,
        next_due_says_when_to_come_back,
        what_is_settled_while_others_lease_stays_settled,
        a_delivery_of_a_withdrawn_message_is_recorded,
        messages_of_one_wait_carry_it,
        long_errors_are_cut,
    }
    ordering {
        messages_of_one_order_go_out_one_by_one,
        a_failing_message_holds_back_its_own_thread_only,
        a_dead_message_lets_the_next_one_go,
        a_withdrawn_message_that_is_out_is_not_overtaken,
        answers_of_a_thread_go_one_by_one_whatever_their_way,
        a_retried_message_gets_in_line,
    }
    operating {
        dead_messages_are_sent_again_with_a_fresh_age,
        what_cannot_be_sent_again_says_so,
        all_dead_of_an_announcer_are_queued_and_it_wakes,
        removed_announcers_lose_their_queue_and_get_it_back,
        a_paused_destination_gives_nothing,
        depths_count_what_is_queued,
        replies_are_kept_for_a_day_and_the_first_stays,
        a_probe_passes_until_closed,
    }
    listing {
        a_wait_is_found_by_what_is_known_of_it,
        waits_are_listed_newest_first_by_every_filter,
        pages_join_without_gap_or_overlap,
        the_outbox_is_listed_by_every_filter,
    }
    feeding {
        events_stand_in_the_order_of_their_commits,
        what_changes_nothing_is_no_event,
        a_question_that_takes_anothers_place_tells_of_both,
        what_comes_too_late_was_created_and_timed_out,
        a_feed_is_of_one_tenant_and_of_one_thread_when_asked,
        whoever_goes_on_from_anywhere_misses_nothing_and_gets_nothing_twice,
        a_feed_is_bounded_by_bytes_too,
        the_moved_waits_of_all_tenants_are_named,
        forgotten_waits_are_out_of_the_feed_and_places_are_never_given_again,
        a_reader_at_the_end_sees_everything_once_while_many_write,
    }
    forgetting {
        what_is_old_and_over_is_forgotten_the_rest_stays,
        keys_and_publishes_outlive_their_wait,
        a_forgotten_question_asked_again_is_the_next_generation,
        after_ninety_days_all_is_as_new,
        purging_goes_in_small_steps,
    }
}
