#!/usr/bin/env escript
%% SPDX-License-Identifier: MIT
%% What is sent comes back. The client has a process for each connection, all at once, with one
%% message of 64 octets under way on each, and prints the round trips per second of all together.
%%
%%   echo.erl server PORT
%%   echo.erl client PORT CONNECTIONS SECONDS
%%   echo.erl check PORT CONNECTIONS OCTETS
%%
%% With `check` so many octets go both ways at once on each connection, in messages of all sizes, and the number of
%% connections on which all of them came back is printed.
-mode(compile).

-define(SIZE, 64).

main(["server", Port]) ->
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port),
        [binary, {ip, {127, 0, 0, 1}}, {active, false}, {nodelay, true}, {backlog, 512}]),
    accept(Listener);
main(["client", Port, Connections, Seconds]) ->
    Parent = self(),
    Count = list_to_integer(Connections),
    Target = list_to_integer(Port),
    lists:foreach(fun(_) -> spawn_link(fun() -> client(Parent, Target) end) end, lists:seq(1, Count)),
    Clients = [receive {connected, Client} -> Client end || _ <- lists:seq(1, Count)],
    Start = now_us(),
    End = Start + round(list_to_float(Seconds) * 1.0e6),
    lists:foreach(fun(Client) -> Client ! {until, End} end, Clients),
    Trips = lists:sum([receive {done, Client, N} -> N end || Client <- Clients]),
    io:format("~.1f~n", [Trips * 1.0e6 / (now_us() - Start)]);
main(["check", Port, Connections, Octets]) ->
    Checks = [spawn_monitor(fun() -> check(list_to_integer(Port), list_to_integer(Octets)) end)
              || _ <- lists:seq(1, list_to_integer(Connections))],
    Ends = [receive {'DOWN', Check, process, Pid, Why} -> Why end || {Pid, Check} <- Checks],
    io:format("~b~n", [length([right || normal <- Ends])]).

now_us() ->
    erlang:monotonic_time(microsecond).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Server = spawn(fun() -> receive yours -> serve(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Server),
    Server ! yours,
    accept(Listener).

serve(Socket) ->
    ok = inet:setopts(Socket, [{active, once}]),
    receive
        {tcp, Socket, Data} ->
            ok = gen_tcp:send(Socket, Data),
            serve(Socket);
        {tcp_closed, Socket} ->
            ok
    end.

client(Parent, Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {nodelay, true}]),
    Parent ! {connected, self()},
    receive
        {until, End} -> Parent ! {done, self(), trips(Socket, End, 0)}
    end.

%% Each message differs from the one before: an answer that is lost or repeated does not match.
trips(Socket, End, N) ->
    Data = <<N:(?SIZE * 8)>>,
    ok = gen_tcp:send(Socket, Data),
    {ok, Data} = gen_tcp:recv(Socket, ?SIZE),
    case now_us() < End of
        true -> trips(Socket, End, N + 1);
        false -> N + 1
    end.

check(Port, Octets) ->
    Data = rand:bytes(Octets),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {nodelay, true}]),
    lists:foreach(fun(Size) ->
        Part = binary:part(Data, 0, Size),
        ok = gen_tcp:send(Socket, Part),
        {ok, Part} = gen_tcp:recv(Socket, Size)
    end, [1, 2, 10, 100, 1000, 10000]),
    spawn_link(fun() -> send_all(Socket, Data, 1) end),
    Data = receive_all(Socket, Octets, []),
    ok = gen_tcp:close(Socket).

send_all(_, <<>>, _) ->
    ok;
send_all(Socket, Data, Size) ->
    Now = min(Size, byte_size(Data)),
    <<Part:Now/binary, Rest/binary>> = Data,
    ok = gen_tcp:send(Socket, Part),
    send_all(Socket, Rest, Size * 7 rem 100003 + 1).

receive_all(_, 0, Parts) ->
    iolist_to_binary(lists:reverse(Parts));
receive_all(Socket, Left, Parts) ->
    {ok, Part} = gen_tcp:recv(Socket, 0),
    receive_all(Socket, Left - byte_size(Part), [Part | Parts]).
