-- What happened to waits, in the order in which it was committed: one connection writes, so ids
-- count up with the commits. event: as in outbox. event_id: NULL for the envelope's own.
CREATE TABLE events (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  wait     INTEGER NOT NULL,
  event    INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  event_id TEXT
) STRICT;
CREATE INDEX events_wait ON events (wait);

-- What is still asked is told to those who follow from the start on. What had ended by now is not:
-- under which id its end was announced is not known of all.
INSERT INTO events (wait, event, at) SELECT id, 0, created_at FROM waits WHERE state <= 1 ORDER BY id;
