-- Times are milliseconds since 1970 (UTC); JSON stands in BLOBs, byte for byte as it came.

-- Where messages go. Rows are few and stay.
CREATE TABLE destinations (
  id     INTEGER PRIMARY KEY,
  kind   TEXT NOT NULL,
  name   TEXT NOT NULL,
  paused INTEGER NOT NULL DEFAULT 0,
  UNIQUE (kind, name)
) STRICT;

-- state: 0 pending, 1 open, 2 completed, 3 timed-out, 4 cancelled, 5 unused.
-- choice: which DedupeRest::choice of the question id this wait has.
-- run_id: NULL when it is the thread's id.
CREATE TABLE waits (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant       TEXT NOT NULL,
  thread_id    TEXT NOT NULL,
  question_id  TEXT NOT NULL,
  generation   INTEGER NOT NULL,
  choice       INTEGER NOT NULL,
  run_id       TEXT,
  state        INTEGER NOT NULL,
  event_id     TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  closed_at    INTEGER,
  valid_until  INTEGER,
  answered_at  INTEGER,
  answered_by  TEXT,
  answered_via TEXT,
  resends      INTEGER NOT NULL DEFAULT 0,
  note         TEXT,
  answer       BLOB,
  taken_over   BLOB,
  envelope     BLOB NOT NULL
) STRICT;
-- The identity, and all waits of a thread.
CREATE UNIQUE INDEX waits_identity ON waits (tenant, thread_id, question_id, generation);
-- One dedupe key, one wait; and all waits of a question id in whatever thread.
CREATE UNIQUE INDEX waits_choice ON waits (tenant, question_id, choice);
CREATE INDEX waits_run ON waits (tenant, run_id) WHERE run_id IS NOT NULL;
CREATE INDEX waits_open ON waits (tenant) WHERE state <= 1;
CREATE INDEX waits_deadline ON waits (expires_at) WHERE state = 1 AND expires_at IS NOT NULL;
CREATE INDEX waits_closed ON waits (closed_at) WHERE closed_at IS NOT NULL;

-- Ids of further publishes of a wait's question.
CREATE TABLE publishes (
  wait     INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  PRIMARY KEY (wait, event_id)
) STRICT, WITHOUT ROWID;

-- state: 0 queued behind another of its order key, 1 queued and due at next_attempt_at,
-- 2 delivered, 3 dead, 4 withdrawn. Of an order key at most one is in state 1, and there is one
-- when any is in state 0.
CREATE TABLE outbox (
  id              INTEGER PRIMARY KEY AUTOINCREMENT,
  wait            INTEGER NOT NULL,
  destination     INTEGER NOT NULL,
  event           INTEGER NOT NULL,
  repeat          INTEGER NOT NULL,
  state           INTEGER NOT NULL,
  attempts        INTEGER NOT NULL DEFAULT 0,
  order_key       INTEGER,
  queued_at       INTEGER NOT NULL,
  next_attempt_at INTEGER NOT NULL,
  finished_at     INTEGER,
  event_id        TEXT,
  reason          TEXT,
  last_error      TEXT
) STRICT;
CREATE INDEX outbox_wait ON outbox (wait);
CREATE INDEX outbox_due ON outbox (destination, next_attempt_at) WHERE state = 1;
CREATE INDEX outbox_order ON outbox (order_key) WHERE state <= 1 AND order_key IS NOT NULL;
CREATE INDEX outbox_dead ON outbox (destination) WHERE state = 3;

-- What must be remembered of waits that were forgotten: the first 16 bytes of a SHA-256 over a
-- dedupe key, a publish's id or an identity, so that no id outlives its wait in the clear.
CREATE TABLE forgotten (
  hash       BLOB PRIMARY KEY,
  generation INTEGER NOT NULL,
  choice     INTEGER NOT NULL,
  at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX forgotten_at ON forgotten (at);

-- Replies kept under an Idempotency-Key.
CREATE TABLE replies (
  scope     TEXT PRIMARY KEY,
  body_hash BLOB NOT NULL,
  status    INTEGER NOT NULL,
  body      BLOB NOT NULL,
  kept_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX replies_at ON replies (kept_at);

-- What a probe writes and reads.
CREATE TABLE probe (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  at INTEGER NOT NULL
) STRICT;
